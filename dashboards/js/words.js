"use strict";
// Numbers and words as they are shown; numbers as in the reports.
perfbisect.words = (() => {
  const number = (value, digits = 4) => {
    if (value === null || value === undefined) return "-";
    if (value === 0) return "0";
    const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
    return value.toLocaleString("en", { minimumFractionDigits: Math.min(places, 12), maximumFractionDigits: Math.min(places, 12) });
  };

  const amount = (value, unit) => {
    if (value !== null && value !== undefined && unit === "share") return `${number(value * 100, 3)} %`;
    return value === null || value === undefined ? "-" : `${number(value)} ${unit}`;
  };

  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(1);

  // A relative effect, or a difference of shares in points. From ten times on as a factor.
  const effect = (metric, value) => {
    if (metric.absolute) return `${signed(value * 100)} points`;
    return value >= 9 ? `× ${number(1 + value, 3)}` : `${signed(value * 100)} %`;
  };

  const between = (metric, [low, high]) => `${effect(metric, low)} to ${effect(metric, high)}`;

  // Never above 0.99, as in the reports.
  const probability = (value) => {
    if (value === null || value === undefined) return "-";
    return value === 0 || value >= 0.01 ? Math.min(0.99, value).toFixed(2) : "<0.01";
  };

  // How often chance shows so much: what is rarer than one in ten thousand is not told apart.
  const chance = (p) => (p === null || p === undefined ? "-" : p < 0.0001 ? "<0.0001" : String(Number(p.toPrecision(1))));

  const day = (moment) => moment.slice(0, 10);
  const minute = (moment) => `${moment.slice(0, 10)} ${moment.slice(11, 16)} UTC`;
  const seconds = (moment) => Date.parse(moment) / 1000;

  const short = (sha) => sha.slice(0, 12);

  const minutes = (value) => {
    if (value < 1) return `${(value * 60).toFixed(0)} s`;
    if (value < 100) return `${value.toFixed(1)} min`;
    const whole = Math.round(value);
    return `${Math.floor(whole / 60)} h ${String(whole % 60).padStart(2, "0")} min`;
  };

  const many = (count, one, more = one + "s") => `${count} ${count === 1 ? one : more}`;

  const lists = [
    ["wrong", "Wrong now", "Slower now, by the product or for a reason that is not known."],
    ["better", "Better", "The same, for the better."],
    ["other", "Not the product", "The instrument, the workload or the night moved: no change of the product is seen behind it."],
    ["silent", "Silent", "No result for a week: nobody knows whether it is still so."],
    ["over", "Over", "The series is back where it was."],
    ["acknowledged", "Acknowledged", "Somebody said that it is known."],
    ["closed", "Closed", "Somebody said that it is fixed or accepted."],
  ];

  const causes = {
    product: "the code under test",
    instrument: "how it is measured",
    workload: "what is measured",
    night: "the machine or the night",
    unknown: "not known",
  };

  // Where the number went; whether that is worse is said beside it, never by colour alone.
  const arrow = (alert) => (alert.effect > 0 ? "▲" : "▼");
  const side = (alert) => (alert.worse ? "worse" : "better");

  return {
    number, amount, effect, between, probability, chance, day, minute, seconds, short, minutes, many, lists, causes, arrow, side,
  };
})();

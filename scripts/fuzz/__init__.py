"""Bent inputs for every border of perfbisect: cells, reports, results, dashboards, journals."""

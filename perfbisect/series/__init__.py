"""Nightly series: store, change points, alerts, suspects."""

"""The static site over series, alerts and bisections."""

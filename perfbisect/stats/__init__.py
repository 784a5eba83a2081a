"""Pure numerics for bisections, comparisons and series."""

"""Reports rendered for terminal, Markdown and HTML."""

"""``perfbisect comment``: comments on pull requests that start jobs, and are answered by one comment."""

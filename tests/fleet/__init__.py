"""Tests of launches on other machines."""

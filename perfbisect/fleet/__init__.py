"""Launches on other machines: what is sent there, and the agent that makes them there."""

"""How urgent something is, in words."""

from a2a_fabric.core.job import HIGH, LOW, NORMAL, URGENT

PRIORITIES = {"low": LOW, "normal": NORMAL, "high": HIGH, "urgent": URGENT}

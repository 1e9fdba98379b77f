"""Tens of regions on a virtual clock, run by the production choice of target, breakers, regions and coordinator."""

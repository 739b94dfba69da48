"""Devices, one file each: cpu (eager and compiled), sim (timed, no arithmetic)."""

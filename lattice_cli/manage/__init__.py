"""The small commands: pull, models, doctor.

Thread: any
"""

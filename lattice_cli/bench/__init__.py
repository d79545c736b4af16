"""Numbers that can be checked.

Thread: any
"""

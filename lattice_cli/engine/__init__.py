"""One thread, one batch of rows, events out.

Thread: any
"""

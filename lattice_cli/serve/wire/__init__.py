"""One file per wire dialect; knows no web framework.

Thread: any
"""

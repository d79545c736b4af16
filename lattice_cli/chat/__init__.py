"""The engine in the terminal.

Thread: any
"""

"""Run language models on your own machine: in the terminal, over HTTP, from one command.

Thread: any
"""

__version__ = "0.1.0"

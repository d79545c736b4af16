"""Knowledge of weights, tokenizers and where they come from.

Thread: any
"""

"""The OpenAI-compatible HTTP endpoint.

Thread: any
"""

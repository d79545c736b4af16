"""From a conversation to token ids, and which strings mark a channel.

Thread: any
"""

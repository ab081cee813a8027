"""How many draft tokens would be accepted, before any server runs?"""

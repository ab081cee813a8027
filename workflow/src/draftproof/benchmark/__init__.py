"""How fast is it with and without speculation, and is the text the same?"""

"""Does the server run with the settings that were asked for?"""

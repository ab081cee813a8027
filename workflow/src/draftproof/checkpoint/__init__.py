"""Will the engine read this draft as it was trained?"""

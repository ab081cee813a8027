"""What does the target itself say and feel on these prompts?"""

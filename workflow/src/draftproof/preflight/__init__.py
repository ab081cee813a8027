"""Can this machine, image and driver run the experiment at all?"""

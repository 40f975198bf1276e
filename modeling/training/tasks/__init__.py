"""Training tasks.

    [task]
    name = "text-classification"
    start = "pretrained"

names a task of `trainer.TASKS`. `source = "task.py:MyTask"` names a class next to the recipe
instead, which implements `Task`. The other keys of the table are the keyword arguments of its
constructor.
"""

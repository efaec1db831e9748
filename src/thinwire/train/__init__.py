"""The reference trainer, and the comparison of recipes built on it.

    model_spec   what ``--model`` says, parsed without torch
    models       the module that a spec describes
    corpus       text as bytes: files, folders, the standard library's own source
    data         batches drawn from a text, the same for every recipe
    finite       one joint decision of all ranks whether a step's gradients may be used
    loop         the steps of one rank, timed and counted
    worker       one rank as a process: ``python -m thinwire.train.worker JOB.json``
    compare      the same training under several recipes, side by side
    report       a comparison as one HTML page

Importing this package, or the parts that only plan and report, loads no torch.
"""

"""Trainers that call the loop themselves: one module each, for the lines that a script adds.

    huggingface    TTraceCallback for transformers.Trainer and what derives from it
    lightning      TTraceCallback for lightning.Trainer

Each attaches when training starts, and enters and leaves a step where its trainer calls back. A
framework is imported by the module that is for it, which only its users import. Loops that a script
writes itself (Accelerate, Fabric, DeepSpeed, torch) need nothing of this: `ttrace.attach`.
"""

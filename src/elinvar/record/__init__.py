"""What a run leaves on disk: the narrow waist between training and everything that looks at it.

Training writes these files and reads them only to continue; report, studio, export, `diff` and
`verify` only read them. Rows of journals ignore keys that they do not know, so that an older
reader reads a newer minor version; whole files carry `schema`, and a newer one is refused.
Nothing here imports torch or numpy.
"""

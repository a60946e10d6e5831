"""What is done otherwise than the parser of commands does it: the words of its help, and how it takes values. For
`semisilo.common.text.cli_errors`, which runs commands.
"""

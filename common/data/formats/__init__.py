"""What a file of images holds, format by format: the table of formats, and their readers. Of ours it imports the forms,
skipped files and the memory check of `semisilo.common.data`; readers, previews, checks and predictions import it."""

"""Weak and strong views of training images. Imported where images are trained on; imports torch, and nothing above
`semisilo.common.data`.
"""

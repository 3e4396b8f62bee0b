"""The package that random problems are drawn with is here, or it is told that it is not."""

from memsched.errors import InvalidInputError
from memsched.support.interrupt import optional

optional("hypothesis", InvalidInputError("memsched.testing needs hypothesis; pip install hypothesis"))

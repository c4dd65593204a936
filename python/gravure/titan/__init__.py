"""What torchtitan's compilers hand over, as programs. For `gravure.torchtitan` alone."""

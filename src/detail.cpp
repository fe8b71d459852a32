#include <ipybox/detail/src.hpp>

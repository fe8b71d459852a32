// Boost's parts that would otherwise be compiled again in every program and plugin.
#include <boost/json/src.hpp>

// The test program's main(); Boost.Test is linked, not included.
#define BOOST_TEST_MODULE ipybox
#include <boost/test/unit_test.hpp>

#include <boost/test/unit_test.hpp>
#include <ipybox/detail/within.hpp>

namespace within_tests {

using ipybox::detail::within;

BOOST_AUTO_TEST_SUITE(within_paths)

BOOST_AUTO_TEST_CASE(a_place_is_below_itself_and_what_holds_it) {
    for (const auto& [path, root] : {std::pair{"/a/b", "/a/b"},
                                     {"/a/b", "/a"},
                                     {"/a/b", "/a/"},
                                     {"/a/b/c", "/a/b"},
                                     {"/a", "/"},
                                     {"/", "/"},
                                     {"a/b", "a"},
                                     {"/a/..b", "/a"}})
        BOOST_TEST(within(path, root), path << " " << root);
}

BOOST_AUTO_TEST_CASE(names_that_begin_alike_are_other_places) {
    for (const auto& [path, root] : {std::pair{"/ab", "/a"},
                                     {"/a", "/a/b"},
                                     {"/a", "/b"},
                                     {"a", "/"},
                                     {"/a.b/c", "/a"},
                                     {"/", "/a"}})
        BOOST_TEST(!within(path, root), path << " " << root);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace within_tests

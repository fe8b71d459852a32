#pragma once
// What tests of places need: a tree of files of their own, and errors held against what they should
// say.
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <ipybox/error.hpp>
#include <string>
#include <string_view>

#include "test_support.hpp"

namespace ipybox::test {

struct PlaceFixture {
    TemporaryDirectory directory;
    std::filesystem::path root = std::filesystem::canonical(directory.path());

    std::filesystem::path make(const std::filesystem::path& name) const {
        std::filesystem::create_directories(root / name);
        return root / name;
    }
    std::filesystem::path file(const std::filesystem::path& name,
                               std::string_view text = "") const {
        make(name.parent_path());
        write_file(root / name, text);
        return root / name;
    }
    template <class Action>
    static void fails(Action action, errc code, std::string_view words) {
        BOOST_CHECK_EXCEPTION(action(), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == code && error.detail().find(words) != std::string::npos;
        });
    }
};

}  // namespace ipybox::test

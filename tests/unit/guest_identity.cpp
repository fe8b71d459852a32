#include <sys/stat.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <latch>
#include <thread>

#include "test_support.hpp"

namespace guest_identity_tests {

using namespace ipybox;
using namespace ipybox::sandbox_kit;

struct Fixture {
    test::TemporaryDirectory directory;
    fs::path own = directory.path() / "own", open = directory.path() / "open";
    Identity somebody{nobody, nobody};

    Fixture() {
        test::write_file(own, "secret");
        test::write_file(open, "text");
        BOOST_REQUIRE(::chmod(directory.path().c_str(), 0711) == 0);
        BOOST_REQUIRE(::chmod(own.c_str(), 0600) == 0 && ::chmod(open.c_str(), 0644) == 0);
    }
    static bool is_root(const char* why) {
        if (::geteuid() == 0) return true;
        BOOST_TEST_MESSAGE("skipped: only root becomes somebody else: " << why);
        return false;
    }
};

BOOST_FIXTURE_TEST_SUITE(guest_identity, Fixture)

BOOST_AUTO_TEST_CASE(access_of_this_process_is_its_own) {
    BOOST_TEST(!first_refused(std::nullopt, {{own, R_OK | W_OK}, {open, R_OK}}));
    BOOST_TEST(first_refused(std::nullopt, {{open, R_OK}, {directory.path() / "none", F_OK}})
                   .value_or(9) == 1);
}

BOOST_AUTO_TEST_CASE(access_of_another_user_is_what_that_one_has) {
    if (!is_root("access")) return;
    BOOST_TEST(!first_refused(somebody, {{open, R_OK}, {directory.path(), X_OK}}));
    BOOST_TEST(first_refused(somebody, {{open, R_OK}, {own, R_OK}}).value_or(9) == 1);
    BOOST_TEST(first_refused(somebody, {{open, W_OK}}).value_or(9) == 0);
    BOOST_TEST(first_refused(somebody, {{directory.path(), R_OK}}).value_or(9) == 0);
    // A group of root's is none of that user's.
    BOOST_REQUIRE(::chmod(own.c_str(), 0640) == 0);
    BOOST_TEST(first_refused(somebody, {{own, R_OK}}).value_or(9) == 0);
    // Its own group is.
    BOOST_REQUIRE(::chown(own.c_str(), 0, nobody) == 0);
    BOOST_TEST(!first_refused(somebody, {{own, R_OK}}));
}

BOOST_AUTO_TEST_CASE(the_rights_are_back_afterwards_and_other_threads_keep_theirs) {
    if (!is_root("threads")) return;
    const auto groups = [] {
        std::vector<gid_t> list(static_cast<std::size_t>(::getgroups(0, nullptr)));
        BOOST_REQUIRE(::getgroups(static_cast<int>(list.size()), list.data()) >= 0);
        return list;
    };
    const auto reads = [](const fs::path& file) {
        return UniqueFd(::open(file.c_str(), O_RDONLY | O_CLOEXEC)) ? true : false;
    };
    const auto before = groups();
    {
        const FileRightsOf rights(somebody);
        BOOST_TEST(!rights.may({own, R_OK}));
        BOOST_TEST(!reads(own));
        bool other = false;
        std::thread([&] { other = reads(own); }).join();
        // It began with the rights of this one.
        BOOST_TEST(!other);
    }
    BOOST_TEST(reads(own));
    BOOST_TEST(groups() == before);
    std::latch started(1), lowered(1);
    bool other = false;
    std::thread thread([&] {
        started.count_down();
        lowered.wait();
        other = reads(own);
    });
    started.wait();
    {
        const FileRightsOf rights(somebody);
        lowered.count_down();
        thread.join();
    }
    BOOST_TEST(other);
    BOOST_TEST(::geteuid() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace guest_identity_tests

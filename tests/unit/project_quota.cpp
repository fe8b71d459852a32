#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/project_quota.hpp>
#include <optional>

#include "quota_volume.hpp"
#include "test_support.hpp"

namespace project_quota_tests {

using namespace ipybox;
using sandbox_kit::ProjectQuota;
namespace fs = std::filesystem;

namespace {
constexpr std::uint64_t mebibyte = 1 << 20;

struct Fixture {
    test::TemporaryDirectory directory;
    fs::path records = directory.path() / "records";

    ProjectQuota make(const std::vector<fs::path>& paths,
                      std::uint64_t bytes = 8 * mebibyte) const {
        return ProjectQuota(paths, bytes, records);
    }
    void refuses(const std::vector<fs::path>& paths, std::string_view words,
                 std::uint64_t bytes = 8 * mebibyte) const {
        BOOST_CHECK_EXCEPTION(make(paths, bytes), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::sandbox_refused &&
                   error.detail().find(words) != std::string::npos;
        });
    }
    std::size_t record_count() const {
        std::size_t count = 0;
        for (const auto& entry : fs::directory_iterator(records))
            if (entry.path().filename() != "block") ++count;
        return count;
    }
};

fsxattr attributes(const fs::path& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    fsxattr found{};
    BOOST_REQUIRE(::ioctl(file.get(), FS_IOC_FSGETXATTR, &found) == 0);
    return found;
}
std::uint32_t project(const fs::path& path) { return attributes(path).fsx_projid; }
void set_project(const fs::path& path, std::uint32_t id) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    auto values = attributes(path);
    values.fsx_projid = id;
    BOOST_REQUIRE(::ioctl(file.get(), FS_IOC_FSSETXATTR, &values) == 0);
}
void fill(const fs::path& path, std::uint64_t size) {
    fs::create_directories(path.parent_path());
    test::write_file(path, std::string(size, 'x'));
}
bool inherited(const fs::path& path) {
    return (attributes(path).fsx_xflags & FS_XFLAG_PROJINHERIT) != 0;
}

// The whole life of a quota on one file system.
void live(const Fixture& fixture, const fs::path& volume) {
    const auto work = volume / "work", other = volume / "other", far = work / "a/b/c";
    fill(far / "file", mebibyte);
    fs::create_directory(other);
    fs::create_symlink(volume, work / "out");
    BOOST_REQUIRE(::mkfifo((work / "pipe").c_str(), 0600) == 0);
    {
        const auto quota = fixture.make({work, other});
        for (const auto& path : {work, other, work / "a", far, far / "file"})
            BOOST_TEST(project(path) == quota.id(), path);
        BOOST_TEST(project(volume) == 0u);
        BOOST_TEST((inherited(work) && inherited(far) && !inherited(far / "file")));
        fill(work / "new/file", 1);
        BOOST_TEST(project(work / "new/file") == quota.id());

        // A second sandbox there shares it, one that is part of it as well.
        std::optional<ProjectQuota> second(fixture.make({far}));
        BOOST_TEST(second->id() == quota.id());
        fixture.refuses({work}, "by another sandbox that runs", 16 * mebibyte);
        second.reset();
        BOOST_TEST(project(far) == quota.id());
        fixture.refuses({volume}, "by another sandbox that runs");
        BOOST_TEST(project(volume) == 0u);
        BOOST_TEST(fixture.record_count() == 1u);
    }
    for (const auto& path : {work, other, far, far / "file", work / "new/file"})
        BOOST_TEST(project(path) == 0u, path);
    BOOST_TEST(!inherited(work));
    BOOST_TEST(fixture.record_count() == 0u);

    fixture.refuses({work}, "more than the limit", mebibyte / 2);
    BOOST_TEST(project(far / "file") == 0u);
    set_project(far / "file", 77);
    fixture.refuses({work}, "already belongs to project 77");
    BOOST_TEST(project(far / "file") == 77u);
    BOOST_TEST(project(work) == 0u);
    set_project(far / "file", 0);

    // A killed host leaves everything; whoever comes next, elsewhere, cleans up.
    const pid_t doomed = ::fork();
    if (doomed == 0) {
        const auto quota = fixture.make({work});
        ::kill(::getpid(), SIGKILL);
    }
    ::waitpid(doomed, nullptr, 0);
    BOOST_TEST(project(far / "file") != 0u);
    BOOST_TEST(fixture.record_count() == 1u);
    {
        const auto quota = fixture.make({other});
        BOOST_TEST(project(far / "file") == 0u);
        BOOST_TEST(project(work) == 0u);
        BOOST_TEST(fixture.record_count() == 1u);
    }
    // Numbers whose record was lost are taken over.
    const auto lost = fixture.make({other}).id();
    set_project(far / "file", lost + 9);
    {
        const auto quota = fixture.make({work});
        BOOST_TEST(project(far / "file") == quota.id());
    }
    BOOST_TEST(project(far / "file") == 0u);

    // Hosts that keep other records never touch it.
    const auto quota = fixture.make({work});
    Fixture stranger;
    stranger.refuses({work}, "already belongs to project");
    BOOST_TEST(project(far / "file") == quota.id());
}
}  // namespace

BOOST_FIXTURE_TEST_SUITE(project_quota, Fixture)

BOOST_AUTO_TEST_CASE(what_cannot_be_limited_is_refused_with_the_reason) {
    const fs::path procfs = "/proc/self";  // has no quotas on any machine
    const auto why = ProjectQuota::problem(procfs);
    BOOST_TEST(why.find("project quotas") != std::string::npos, why);
    BOOST_TEST(why.find("prjquota") != std::string::npos, why);
    if (::geteuid() != 0) BOOST_TEST(why.find("root") != std::string::npos, why);
    refuses({procfs}, why);
    refuses({}, "nothing on the disk");
    refuses({"/proc/self", "/"}, "different file systems");
    BOOST_TEST(!fs::exists(records));
    BOOST_TEST(!ProjectQuota::problem("/nowhere").empty());
    BOOST_CHECK_EXCEPTION(make({"/nowhere"}), Error,
                          [](const Error& error) { return error.code() == errc::io_error; });
}

BOOST_AUTO_TEST_CASE(ext4_counts_shares_and_cleans_up) {
    if (const test::QuotaVolume volume("ext4"); volume) live(*this, volume.path());
}

BOOST_AUTO_TEST_CASE(xfs_counts_shares_and_cleans_up) {
    if (const test::QuotaVolume volume("xfs"); volume) live(*this, volume.path());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace project_quota_tests

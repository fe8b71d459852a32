#pragma once
// A file system with project quotas, for tests of what few machines have.
#include <sys/mount.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <ipybox/sandbox_kit/project_quota.hpp>
#include <string>

#include "test_support.hpp"

namespace ipybox::test {

// Made in a file and mounted while it exists, by mke2fs or mkfs.xfs.
class QuotaVolume {
public:
    explicit QuotaVolume(const std::string& type) {
        std::filesystem::create_directory(path());
        const auto make = type == "ext4"
                              ? "mke2fs -q -t ext4 -O quota,project -E quotatype=prjquota "
                              : "mkfs.xfs -q ";
        const auto image = (directory_.path() / "image").string();
        if (::geteuid() != 0) {
            problem_ = "only root can mount it";
        } else if (std::system(("PATH=$PATH:/usr/sbin:/sbin; truncate -s 400M " + image + " && " +
                                make + image + " && mount -o loop,prjquota " + image + " " +
                                path().string() + " >/dev/null 2>&1")
                                   .c_str()) != 0) {
            problem_ = "this machine cannot make or mount one";
        } else {
            mounted_ = true;
            problem_ = sandbox_kit::ProjectQuota::problem(path());
        }
        if (!problem_.empty())
            std::cerr << "skipped: quotas on " << type << ": " << problem_ << '\n';
    }
    ~QuotaVolume() {
        if (mounted_) ::umount2(path().c_str(), MNT_DETACH);
    }
    QuotaVolume(const QuotaVolume&) = delete;
    QuotaVolume& operator=(const QuotaVolume&) = delete;

    // False, after having told why on standard error, where it cannot be had.
    explicit operator bool() const { return problem_.empty(); }
    std::filesystem::path path() const { return directory_.path() / "volume"; }

private:
    TemporaryDirectory directory_;
    std::string problem_;
    bool mounted_ = false;
};

}  // namespace ipybox::test

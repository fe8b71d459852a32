#pragma once
// Tests of what the modes of files keep from whoever looks, which root does not notice.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <ipybox/sandbox_kit/guest_identity.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace ipybox::test {

// The calling thread looks at files as somebody who is not root, but owns those below `top` and
// what ipybox keeps, as long as this lives.
class OrdinaryUser {
public:
    explicit OrdinaryUser(std::filesystem::path top) : owned_{std::move(top)} {
        if (::geteuid() != 0) return;
        if (const char* state = std::getenv("XDG_STATE_HOME")) owned_.emplace_back(state);
        give_to(sandbox_kit::nobody);
        rights_.emplace(Identity{sandbox_kit::nobody, sandbox_kit::nobody});
    }
    ~OrdinaryUser() {
        if (!rights_) return;
        rights_.reset();
        give_to(0);
    }
    OrdinaryUser(const OrdinaryUser&) = delete;
    OrdinaryUser& operator=(const OrdinaryUser&) = delete;

private:
    void give_to(uid_t user) const {
        const auto give = [user](const std::filesystem::path& path) {
            if (::lchown(path.c_str(), user, user) != 0)
                throw std::runtime_error("cannot give away " + path.string());
        };
        for (const auto& top : owned_) {
            give(top);
            for (const auto& entry : std::filesystem::recursive_directory_iterator(top))
                give(entry.path());
        }
    }

    std::vector<std::filesystem::path> owned_;
    std::optional<sandbox_kit::FileRightsOf> rights_;
};

}  // namespace ipybox::test

#pragma once
// Whether an audit log is what ipybox wrote, all of it.
#include <filesystem>
#include <ipybox/approval/audit_chain.hpp>
#include <string>
#include <vector>

namespace ipybox {

// What is known of a log besides its files.
struct AuditVerificationOptions {
    // As of AuditOptions; empty: ipybox's own.
    std::filesystem::path state_directory;
    // Public keys in PEM, besides those of the state directory.
    std::vector<std::filesystem::path> keys;
    // A file whose last line is a head, as it was sent out; empty without.
    std::filesystem::path head;
};

// What was found.
struct AuditVerification {
    enum class Outcome {
        whole,    // and equal to the newest head that is known
        unknown,  // what is there is right, but it is not proven to be all
        broken,   // changed, exchanged, removed or added
    };
    Outcome outcome = Outcome::broken;
    std::string what;                   // one sentence with the place
    std::vector<std::string> notes;     // what is no fault, but worth to know
    std::uint64_t first = 0, last = 0;  // numbers of the records that were looked at
};

// Looks at the files of one log, the oldest first. Writes nothing. Throws Error: bad_argument (a
// file cannot be read, a key or the head is none), bad_config, io_error (others can write what this
// host knows, or it is damaged).
AuditVerification verify_audit_log(const std::vector<std::filesystem::path>& files,
                                   const AuditVerificationOptions& options = {});

}  // namespace ipybox

#ifndef IPYBOX_SEPARATE_COMPILATION
#include <ipybox/approval/impl/audit_verification.ipp>
#endif

// Prints the system call filters for the machine that this is compiled for, as Linux reads them: a
// name and hexadecimal digits on each line; and the machines of libseccomp that are not refused.
#include <cstdio>
#include <syscall_filter.hpp>

namespace {
void print(const char* name, const std::string& code) {
    std::printf("%s ", name);
    for (const unsigned char byte : code) std::printf("%02x", byte);
    std::puts("");
}
}  // namespace

int main() {
    using namespace ipybox::launcher;
    print("allowing", allowing_filter());
    print("denying", denying_filter());
    print("denying_unix_sockets", denying_filter(false));
    const std::pair<const char*, std::uint32_t> machines[] = {
        {"x86", SCMP_ARCH_X86},         {"x86_64", SCMP_ARCH_X86_64},
        {"x32", SCMP_ARCH_X32},         {"arm", SCMP_ARCH_ARM},
        {"aarch64", SCMP_ARCH_AARCH64}, {"mips64", SCMP_ARCH_MIPS64},
        {"ppc64le", SCMP_ARCH_PPC64LE}, {"s390x", SCMP_ARCH_S390X},
        {"riscv64", SCMP_ARCH_RISCV64}, {"none", 0}};
    for (const auto& [name, architecture] : machines) {
        try {
            check_machine(architecture);
            std::printf("known %s\n", name);
        } catch (const ipybox::Error& error) {
            if (error.code() != ipybox::errc::sandbox_refused) return 1;
        }
    }
}

#pragma once
// Whether a kernel can be forked from a warm process, and from which.
#include <filesystem>
#include <ipybox/kernel_backend.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace ipybox::forked {

// What is loaded beforehand, as far as it is installed.
inline const std::vector<std::string>& default_preload() {
    static const std::vector<std::string> modules = {"IPython",
                                                     "matplotlib.pyplot",
                                                     "numpy",
                                                     "pandas",
                                                     "pydantic",
                                                     "ipybox_kernel.models",
                                                     "ipybox_kernel.tools"};
    return modules;
}

// Directories of packages that belong to the interpreter.
std::vector<std::filesystem::path> package_directories(const KernelSpec& spec);

// Why a kernel of this specification cannot be forked at all, for people; empty when it can.
// packages: package_directories().
std::string unfit(Sandbox& sandbox, const KernelSpec& spec,
                  const std::vector<std::filesystem::path>& packages);

// Names the state of everything that a warm process has loaded: kernels of the same text can share
// one, and what is installed changes it.
std::string zygote_key(Sandbox& sandbox, const KernelSpec& spec,
                       const std::vector<std::filesystem::path>& packages,
                       const std::vector<std::string>& preload);

// A module that the kernel's own path has, but that the warm process has loaded from elsewhere;
// empty when there is none.
std::string shadowed(const KernelSpec& spec, const std::string& library,
                     const std::set<std::string>& modules);

}  // namespace ipybox::forked

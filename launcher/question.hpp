#pragma once
// What a request would start, held so that an answer is an answer about it, and the question.
//
// The question's file holds records: a letter, a size (uint32), that many bytes.
//   p  the program's path          w  code can write it (empty)   s  it is a script (empty)
//   a  an argument, as executed    d  the working directory       i  where its input comes from
//   f  another descriptor's number and what it is
//   e  NAME=VALUE of what steers loaders and interpreters, and differs from the kernel's own
//   n  the name of another variable that does
// With it go the sealed copies that `byte` tells of, in this order.
#include <limits.h>

#include "request.hpp"

namespace ipybox::launcher {

// In the byte of a question.
constexpr char question_byte = '@', question_has_copy = 1, question_has_input = 2;

class Target {
public:
    // False: refusal says why not.
    bool look(Request& request, Refusal& refusal);
    // Whether it is this very file.
    bool is(const char* path) const;
    // Sends the question; the answer comes over `answer`. base: variables to compare with.
    bool ask(const Request& request, int host, char** base, int& answer, Refusal& refusal);

    char path[PATH_MAX] = "";  // as it is now, without links
    bool writable = false;     // or lies where names can be changed: a sealed copy is executed
    bool script = false;
    int copy = -1;
    int input = -1;            // a sealed file, read from its beginning
    unsigned copy_number = 0;  // of a script's copy, for its interpreter
    char interpreter[PATH_MAX] = "";
    char** argv = nullptr;  // as executed

private:
    bool make_copy(int file, Refusal& refusal);
    bool read_first_line(int file, Refusal& refusal);
    bool make_argv(const Request& request, Refusal& refusal);
    bool hold_input(Request& request, Refusal& refusal);
    void hold_directory(Request& request);

    char directory_[PATH_MAX] = "";
    char option_[256] = "";  // of the interpreter
    char copy_name_[32] = "";
};

}  // namespace ipybox::launcher

// SPDX-License-Identifier: Apache-2.0
#include "interpreter/parser.hpp"

#include "interpreter/fault.hpp"
#include "small_kernel.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvferry::ptx {
namespace {

/// What the parser says of a kernel with this body; empty if it takes it.
std::string complaint(const std::string& body) {
  try {
    static_cast<void>(parse_kernel(small_module(body), "small"));
  } catch (const UnknownPtx& error) {
    return error.what();
  }
  return {};
}

TEST(PtxParser, NamesTheOpcodeThatItDoesNotKnowAndItsLine) {
  const std::string said = complaint("mov.u32 %r1, 0;\nvote.sync.any.pred %p1, %p2, -1;\nret;");
  EXPECT_NE(said.find("line 13"), std::string::npos) << said;
  EXPECT_NE(said.find("'vote.sync.any.pred'"), std::string::npos) << said;
}

TEST(PtxParser, RefusesAKnownOpcodeWithAnotherTypeOrModifier) {
  EXPECT_NE(complaint("min.f32 %r1, %r2, %r3;").find("with this type"), std::string::npos);
  EXPECT_NE(complaint("add.s24 %r1, %r2, %r3;").find("does not know it"), std::string::npos);
  EXPECT_NE(complaint("add.sat.s32 %r1, %r2, %r3;").find("does not know it"), std::string::npos);
  EXPECT_NE(complaint("add.v2.s32 %r1, %r2, %r3;").find("vector"), std::string::npos);
  EXPECT_NE(complaint("setp.lt.and.u32 %p1, %r2, %r3;").find("does not know it"),
            std::string::npos);
}

TEST(PtxParser, RefusesNamesThatNothingDeclares) {
  EXPECT_NE(complaint("mov.u32 %r99, 0;").find("%r99"), std::string::npos);
  EXPECT_NE(complaint("bra $L_nowhere;").find("'$L_nowhere'"), std::string::npos);
  EXPECT_NE(complaint("mov.u32 %r1, %laneid;").find("%laneid"), std::string::npos);
  EXPECT_NE(complaint("ld.param.u32 %r1, [other_param_0];").find("other_param_0"),
            std::string::npos);
}

TEST(PtxParser, RefusesAnotherNumberOfOperands) {
  EXPECT_NE(complaint("add.s32 %r1, %r2;").find("2 operands, not 3"), std::string::npos);
}

TEST(PtxParser, RefusesADirectiveThatItDoesNotKnow) {
  EXPECT_NE(complaint(".local .b8 depot[16];").find(".local"), std::string::npos);
}

TEST(PtxParser, KeepsNamesWithinTheirBraces) {
  const char* const twice =
      "{\n.reg .pred done;\nagain:\nsetp.eq.s32 done, %r1, 0;\n@!done bra again;\n}\n";
  const Kernel kernel = parse_kernel(
      small_module(std::string("mov.u32 %r1, 0;\n") + twice + twice + "ret;"), "small");
  EXPECT_EQ(kernel.code[2].target, 1U);
  EXPECT_EQ(kernel.code[4].target, 3U);
  EXPECT_NE(kernel.code[2].predicate, kernel.code[4].predicate);
}

}  // namespace
}  // namespace kvferry::ptx

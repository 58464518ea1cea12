# SPDX-License-Identifier: Apache-2.0
# To be sourced: packages of Debian's releases without a change of the system.
#
#   debian_mirror [CODENAME]           prints the address of the mirror in apt's configuration: that of this release, or
#                                      of any release of Debian
#   configure_debian13 DIR COMPONENT [CODENAME]   writes DIR/apt/apt.conf, for apt with lists, archives and a status of its own, so
#                                      that it sees no package as installed. CODENAME as above. Fails without a mirror
#                                      or Debian's keys.

debian_mirror() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 2>/dev/null |
    awk -v wanted="${1:-}" '(wanted == "" ? $1 !~ /-/ : $1 == wanted) && !found++ { print $2 }'
}

configure_debian13() {
  local dir=$1 component=$2 url keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  url=$(debian_mirror "${3:-}")
  { [ -n "$url" ] && [ -f "$keyring" ] && [ "$(uname -m)" = x86_64 ]; } || return 1
  mkdir -p "$dir"/apt/{lists,cache/archives}/partial
  echo "deb [signed-by=$keyring] $url trixie $component" >"$dir/apt/sources.list"
  : >"$dir/apt/status"
  cat >"$dir/apt/apt.conf" <<END
Dir::State "$dir/apt";
Dir::State::lists "$dir/apt/lists";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt/cache";
Dir::Etc::sourcelist "$dir/apt/sources.list";
Dir::Etc::sourceparts "-";
APT::Sandbox::User "root";
Acquire::http::Timeout "30";
END
}

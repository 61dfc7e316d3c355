#!/bin/sh
# doxygen_filter.sh FILE: Doxygen's filter. Puts what a header declares into the group of its folder (groups.dox). Takes headings
# out of a Markdown page's links, which Doxygen 1.9.4 does not resolve. Lines keep their numbers.
open() { echo "/** @addtogroup $1 */ /** @{ */"; }
close="/** @} */"
case $1 in
  *.dox) exec cat "$1" ;;
  *.md) exec sed -E 's/\[([^]]*)\]\(#[^)]*\)/\1/g; s/\]\(([^)#]+)#[^)]*\)/](\1)/g' "$1" ;;
  *.h) exec sed "1s#^#$(open c) #; \$s#\$# $close#" "$1" ;;
  */gpu/*) group=gpu ;;
  */primitive/*) group=primitives ;;
  */exec/*) group=executors ;;
  */presets/*) group=presets ;;
  */interop/*) group=engines ;;
  */store/* | */tiers/*) group=memory ;;
  */budgets/* | */pools/* | */scorers/* | */segments/* | */selectors/* | */triggers/* | */windows/*) group=parts ;;
  *) group=core ;;
esac
exec sed "s#^namespace kvpolicy.*{\$#& $(open $group)#; s#^}  // namespace kvpolicy.*#$close &#" "$1"

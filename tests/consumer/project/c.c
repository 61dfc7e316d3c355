/* The C ABI: a policy from text, and why there is none. */
#include <kvpolicy.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  kvpolicy_policy* policy = NULL;
  if (kvpolicy_policy_parse("snapkv:tokens=512", NULL, 0, &policy) != KVPOLICY_OK) return 1;
  printf("kvpolicy %s: snapkv looks at a prompt's last %d queries\n", kvpolicy_version(), (int)kvpolicy_observation_queries(policy));
  kvpolicy_policy_free(policy);
  return kvpolicy_policy_parse("qest", NULL, 0, &policy) == KVPOLICY_INVALID && strstr(kvpolicy_message(), "quest") != NULL ? 0
                                                                                                                            : 1;
}

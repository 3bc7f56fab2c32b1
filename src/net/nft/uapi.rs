//! Constants of nf_tables, by the message or the expression that they belong to.

// linux/netfilter/nf_tables.h: enum nf_tables_msg_types
pub const NFT_MSG_NEWTABLE: u16 = 0;
pub const NFT_MSG_GETTABLE: u16 = 1;
pub const NFT_MSG_DELTABLE: u16 = 2;
pub const NFT_MSG_NEWCHAIN: u16 = 3;
pub const NFT_MSG_GETCHAIN: u16 = 4;
pub const NFT_MSG_DELCHAIN: u16 = 5;
pub const NFT_MSG_NEWRULE: u16 = 6;
pub const NFT_MSG_GETRULE: u16 = 7;
pub const NFT_MSG_DELRULE: u16 = 8;
pub const NFT_MSG_NEWSET: u16 = 9;
pub const NFT_MSG_NEWSETELEM: u16 = 12;
pub const NFT_MSG_GETSET: u16 = 10;
pub const NFT_MSG_GETSETELEM: u16 = 13;
pub const NFT_MSG_DELSETELEM: u16 = 14;
pub const NFT_MSG_GETGEN: u16 = 16;
pub const NFT_MSG_NEWFLOWTABLE: u16 = 22;
pub const NFT_MSG_GETFLOWTABLE: u16 = 23;
pub const NFT_MSG_DELFLOWTABLE: u16 = 24;

// enum nft_table_attributes, nft_table_flags
pub const NFTA_TABLE_NAME: u16 = 1;
pub const NFTA_TABLE_FLAGS: u16 = 2;
pub const NFTA_TABLE_USE: u16 = 3;
pub const NFTA_TABLE_USERDATA: u16 = 6;
pub const NFT_TABLE_F_DORMANT: u32 = 1;

// enum nft_chain_attributes, nft_hook_attributes
pub const NFTA_CHAIN_TABLE: u16 = 1;
pub const NFTA_CHAIN_NAME: u16 = 3;
pub const NFTA_CHAIN_HOOK: u16 = 4;
pub const NFTA_CHAIN_POLICY: u16 = 5;
pub const NFTA_CHAIN_USE: u16 = 6;
pub const NFTA_CHAIN_TYPE: u16 = 7;
pub const NFTA_CHAIN_USERDATA: u16 = 12;
pub const NFTA_HOOK_HOOKNUM: u16 = 1;
pub const NFTA_HOOK_PRIORITY: u16 = 2;

// enum nft_rule_attributes, nft_rule_compat_attributes
pub const NFTA_RULE_TABLE: u16 = 1;
pub const NFTA_RULE_CHAIN: u16 = 2;
pub const NFTA_RULE_HANDLE: u16 = 3;
pub const NFTA_RULE_EXPRESSIONS: u16 = 4;
pub const NFTA_RULE_COMPAT: u16 = 5;
pub const NFTA_RULE_USERDATA: u16 = 7;
pub const NFTA_RULE_COMPAT_PROTO: u16 = 1;
pub const NFTA_RULE_COMPAT_FLAGS: u16 = 2;

// enum nft_set_attributes, nft_set_flags, nft_data_types
pub const NFTA_SET_TABLE: u16 = 1;
pub const NFTA_SET_NAME: u16 = 2;
pub const NFTA_SET_FLAGS: u16 = 3;
pub const NFTA_SET_KEY_TYPE: u16 = 4;
pub const NFTA_SET_KEY_LEN: u16 = 5;
pub const NFTA_SET_DATA_TYPE: u16 = 6;
pub const NFTA_SET_DATA_LEN: u16 = 7;
pub const NFTA_SET_ID: u16 = 10;
pub const NFTA_SET_USERDATA: u16 = 13;
pub const NFT_SET_MAP: u32 = 8;
pub const NFT_DATA_VERDICT: u32 = 0xffff_ff00;

// enum nft_set_elem_list_attributes, nft_set_elem_attributes
pub const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
pub const NFTA_SET_ELEM_LIST_SET: u16 = 2;
pub const NFTA_SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub const NFTA_SET_ELEM_KEY: u16 = 1;
pub const NFTA_SET_ELEM_DATA: u16 = 2;
pub const NFTA_SET_ELEM_USERDATA: u16 = 6;

// enum nft_flowtable_attributes, nft_flowtable_hook_attributes, nft_devices_attributes,
// nft_offload_attributes, and nf_dev_hooks of linux/netfilter.h
pub const NFTA_FLOWTABLE_TABLE: u16 = 1;
pub const NFTA_FLOWTABLE_NAME: u16 = 2;
pub const NFTA_FLOWTABLE_HOOK: u16 = 3;
pub const NFTA_FLOWTABLE_HOOK_NUM: u16 = 1;
pub const NFTA_FLOWTABLE_HOOK_PRIORITY: u16 = 2;
pub const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;
pub const NFTA_DEVICE_NAME: u16 = 1;
pub const NFTA_FLOW_TABLE_NAME: u16 = 1;
pub const NF_NETDEV_INGRESS: u32 = 0;

// enum nft_list_attributes, nft_data_attributes, nft_verdict_attributes, nft_gen_attributes
pub const NFTA_LIST_ELEM: u16 = 1;
pub const NFTA_DATA_VALUE: u16 = 1;
pub const NFTA_DATA_VERDICT: u16 = 2;
pub const NFTA_VERDICT_CODE: u16 = 1;
pub const NFTA_VERDICT_CHAIN: u16 = 2;
pub const NFTA_GEN_ID: u16 = 1;

// enum nft_verdicts, and those of linux/netfilter.h
pub const NF_DROP: i32 = 0;
pub const NF_ACCEPT: i32 = 1;
pub const NFT_JUMP: i32 = -3;
pub const NFT_GOTO: i32 = -4;
pub const NFT_RETURN: i32 = -5;

// enum nft_registers
pub const NFT_REG_VERDICT: u32 = 0;
pub const NFT_REG_1: u32 = 1;
pub const NFT_REG_4: u32 = 4;
pub const NFT_REG32_00: u32 = 8;

// enum nft_expr_attributes
pub const NFTA_EXPR_NAME: u16 = 1;
pub const NFTA_EXPR_DATA: u16 = 2;

// enum nft_meta_attributes, nft_meta_keys
pub const NFTA_META_DREG: u16 = 1;
pub const NFTA_META_KEY: u16 = 2;
pub const NFTA_META_SREG: u16 = 3;
pub const NFT_META_LEN: u32 = 0;
pub const NFT_META_NFTRACE: u32 = 12;
pub const NFT_META_MARK: u32 = 3;
pub const NFT_META_IIF: u32 = 4;
pub const NFT_META_OIF: u32 = 5;
pub const NFT_META_IIFNAME: u32 = 6;
pub const NFT_META_OIFNAME: u32 = 7;
pub const NFT_META_NFPROTO: u32 = 15;
pub const NFT_META_L4PROTO: u32 = 16;

// enum nft_payload_attributes, nft_payload_bases
pub const NFTA_PAYLOAD_DREG: u16 = 1;
pub const NFTA_PAYLOAD_BASE: u16 = 2;
pub const NFTA_PAYLOAD_OFFSET: u16 = 3;
pub const NFTA_PAYLOAD_LEN: u16 = 4;
pub const NFT_PAYLOAD_LL_HEADER: u32 = 0;
pub const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
pub const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;

// enum nft_bitwise_attributes, nft_bitwise_ops
pub const NFTA_BITWISE_SREG: u16 = 1;
pub const NFTA_BITWISE_DREG: u16 = 2;
pub const NFTA_BITWISE_LEN: u16 = 3;
pub const NFTA_BITWISE_MASK: u16 = 4;
pub const NFTA_BITWISE_XOR: u16 = 5;
pub const NFTA_BITWISE_OP: u16 = 6;
pub const NFT_BITWISE_MASK_XOR: u32 = 0;

// enum nft_byteorder_attributes, nft_byteorder_ops
pub const NFTA_BYTEORDER_SREG: u16 = 1;
pub const NFTA_BYTEORDER_DREG: u16 = 2;
pub const NFTA_BYTEORDER_OP: u16 = 3;
pub const NFTA_BYTEORDER_LEN: u16 = 4;
pub const NFTA_BYTEORDER_SIZE: u16 = 5;
pub const NFT_BYTEORDER_HTON: u32 = 1;

// enum nft_cmp_attributes, nft_cmp_ops
pub const NFTA_CMP_SREG: u16 = 1;
pub const NFTA_CMP_OP: u16 = 2;
pub const NFTA_CMP_DATA: u16 = 3;
pub const NFT_CMP_EQ: u32 = 0;
pub const NFT_CMP_NEQ: u32 = 1;
pub const NFT_CMP_LTE: u32 = 3;
pub const NFT_CMP_GTE: u32 = 5;

// enum nft_rt_attributes, nft_rt_keys
pub const NFTA_RT_DREG: u16 = 1;
pub const NFTA_RT_KEY: u16 = 2;
pub const NFT_RT_XFRM: u32 = 4;

// enum nft_ct_attributes, nft_ct_keys, and ip_conntrack_dir of
// linux/netfilter/nf_conntrack_tuple_common.h
pub const NFTA_CT_DREG: u16 = 1;
pub const NFTA_CT_KEY: u16 = 2;
pub const NFTA_CT_DIRECTION: u16 = 3;
pub const NFT_CT_STATE: u32 = 0;
pub const NFT_CT_DIRECTION: u32 = 1;
pub const NFT_CT_STATUS: u32 = 2;
pub const NFT_CT_PROTO_DST: u32 = 12;
pub const NFT_CT_DST_IP: u32 = 20;
pub const NFT_CT_DST_IP6: u32 = 22;
pub const IP_CT_DIR_ORIGINAL: u8 = 0;

// enum nft_fib_attributes, nft_fib_result, nft_fib_flags
pub const NFTA_FIB_DREG: u16 = 1;
pub const NFTA_FIB_RESULT: u16 = 2;
pub const NFTA_FIB_FLAGS: u16 = 3;
pub const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
pub const NFTA_FIB_F_DADDR: u32 = 2;
pub const NFTA_FIB_F_IIF: u32 = 8;

// enum nft_counter_attributes
pub const NFTA_COUNTER_BYTES: u16 = 1;
pub const NFTA_COUNTER_PACKETS: u16 = 2;

// enum nft_target_attributes, nft_range_attributes, nft_range_ops
pub const NFTA_TARGET_NAME: u16 = 1;
pub const NFTA_RANGE_OP: u16 = 2;
pub const NFTA_RANGE_SREG: u16 = 1;
pub const NFTA_RANGE_FROM_DATA: u16 = 3;
pub const NFTA_RANGE_TO_DATA: u16 = 4;
pub const NFT_RANGE_NEQ: u32 = 1;

// enum nft_match_attributes (linux/netfilter/nf_tables_compat.h)
pub const NFTA_MATCH_NAME: u16 = 1;
pub const NFTA_MATCH_REV: u16 = 2;
pub const NFTA_MATCH_INFO: u16 = 3;

// enum nft_lookup_attributes, nft_lookup_flags
pub const NFTA_LOOKUP_SET: u16 = 1;
pub const NFTA_LOOKUP_SREG: u16 = 2;
pub const NFTA_LOOKUP_DREG: u16 = 3;
pub const NFTA_LOOKUP_FLAGS: u16 = 5;
pub const NFT_LOOKUP_F_INV: u32 = 1;

// enum nft_immediate_attributes
pub const NFTA_IMMEDIATE_DREG: u16 = 1;
pub const NFTA_IMMEDIATE_DATA: u16 = 2;

// enum nft_nat_attributes, nft_nat_types
pub const NFTA_NAT_TYPE: u16 = 1;
pub const NFTA_NAT_FAMILY: u16 = 2;
pub const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
pub const NFTA_NAT_REG_PROTO_MIN: u16 = 5;
pub const NFT_NAT_DNAT: u32 = 1;

// libnftnl/udata.h: enum nftnl_udata_types (the same number for tables, rules and elements),
// nftnl_udata_set_types
pub const NFTNL_UDATA_COMMENT: u8 = 0;
pub const NFTNL_UDATA_SET_KEYBYTEORDER: u8 = 0;

// enum nft_trace_attributes, enum nft_trace_types
pub const NFT_MSG_TRACE: u16 = 17;
pub const NFNLGRP_NFTRACE: u32 = 9;
pub const NFTA_TRACE_TABLE: u16 = 1;
pub const NFTA_TRACE_CHAIN: u16 = 2;
pub const NFTA_TRACE_RULE_HANDLE: u16 = 3;
pub const NFTA_TRACE_TYPE: u16 = 4;
pub const NFTA_TRACE_VERDICT: u16 = 5;
pub const NFTA_TRACE_ID: u16 = 6;
pub const NFTA_TRACE_NETWORK_HEADER: u16 = 8;
pub const NFTA_TRACE_TRANSPORT_HEADER: u16 = 9;
pub const NFTA_TRACE_POLICY: u16 = 16;
pub const NFT_TRACETYPE_POLICY: u32 = 1;
pub const NFT_TRACETYPE_RULE: u32 = 3;

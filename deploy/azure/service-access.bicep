// What one platform service may do, and nothing else: take what is for it from its own subscriptions, answer on the
// topics of replies, and keep artifacts in the container of workspaces. It reaches no table and no other's directives.

param busName string
param accountName string
param workspaceContainer string
param service string
param principalId string

var lanes = 16

// Azure Service Bus Data Receiver
var busReceiver = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'

// Azure Service Bus Data Sender
var busSender = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'

// Storage Blob Data Contributor
var blobContributor = 'ba92f5b4-2d11-453d-a403-e96b0029c9fe'

resource namespace 'Microsoft.ServiceBus/namespaces@2021-11-01' existing = {
  name: busName
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2021-11-01' existing = [for lane in range(0, lanes): {
  parent: namespace
  name: 'global-bus-p${lane}'
}]

resource subscription 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2021-11-01' existing = [for lane in range(0, lanes): {
  parent: topic[lane]
  name: service
}]

resource replyTopic 'Microsoft.ServiceBus/namespaces/topics@2021-11-01' existing = [for lane in range(0, lanes): {
  parent: namespace
  name: 'global-bus-replies-p${lane}'
}]

resource mayReceive 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for lane in range(0, lanes): {
  name: guid(namespace.id, service, principalId, busReceiver, string(lane))
  scope: subscription[lane]
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', busReceiver)
  }
}]

resource mayReply 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for lane in range(0, lanes): {
  name: guid(namespace.id, service, principalId, busSender, string(lane))
  scope: replyTopic[lane]
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', busSender)
  }
}]

resource account 'Microsoft.Storage/storageAccounts@2023-05-01' existing = {
  name: accountName
}

resource blobService 'Microsoft.Storage/storageAccounts/blobServices@2023-05-01' existing = {
  parent: account
  name: 'default'
}

resource workspace 'Microsoft.Storage/storageAccounts/blobServices/containers@2023-05-01' existing = {
  parent: blobService
  name: workspaceContainer
}

resource mayUseWorkspace 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(workspace.id, service, principalId, blobContributor)
  scope: workspace
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', blobContributor)
  }
}
